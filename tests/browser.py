"""A headless Chromium for tests: pages from disk, any width, either theme; what it asked for and complained about."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


def executables() -> tuple[str, str] | None:
    """Chromium and its driver, or None."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


def need_browser() -> tuple[str, str]:
    """Chromium and its driver; without them the test skips by name, or fails where UNDERLOAD_REQUIRE_BROWSER is set."""
    found = executables()
    if found is None:
        if os.environ.get("UNDERLOAD_REQUIRE_BROWSER"):
            pytest.fail("chromium and chromedriver are needed here (UNDERLOAD_REQUIRE_BROWSER is set)")
        pytest.skip("no chromium with chromedriver on the path")
    return found


class Browser:
    """One Chromium window. `open` waits for load and fonts; `complaints` and `requests` are since the last `open`."""

    def __init__(self, browser: str, driver: str, profile: str) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_script_timeout(300)
        self.driver.set_page_load_timeout(300)
        self.driver.get("about:blank")  # away from the browser's own first page, which asks for things late

    def size(self, width: int, height: int = 900) -> None:
        """Set the size of the viewport itself; a window cannot be made as narrow as a phone."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def theme(self, name: str) -> None:
        """Set the page's own switch: light or dark."""
        self.run(
            "document.documentElement.dataset.mode = document.documentElement.dataset.theme = arguments[0];"
            "localStorage.setItem('mode', arguments[0]); localStorage.setItem('theme', arguments[0]);",
            name,
        )

    def media(self, **features: str) -> None:
        """Emulate media: media='print', prefers_color_scheme='dark', prefers_reduced_motion='reduce'."""
        kind = features.pop("media", "")
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": wanted})

    def open(self, page: Path | str, query: str = "") -> None:
        self._events()
        self.driver.get_log("browser")
        url = page.resolve().as_uri() + query if isinstance(page, Path) else page
        self.driver.get(url)
        self.settle()

    def settle(self) -> None:
        self.driver.execute_async_script(
            "const done = arguments[0]; document.fonts.ready.then(() =>"
            "requestAnimationFrame(() => requestAnimationFrame(() => done())));"
        )

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, css: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", css))

    def press(self, *keys: str) -> None:
        """Send keys to whatever has the focus."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def picture(self, path: Path, *, whole: bool = True) -> None:
        import base64

        made = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot",
            {"format": "png", "captureBeyondViewport": whole} | ({"clip": self._page_clip()} if whole else {}),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def _page_clip(self) -> dict[str, float]:
        box = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        return {"x": 0, "y": 0, "width": box["width"], "height": min(box["height"], 16000), "scale": 1}

    def _events(self) -> list[dict[str, Any]]:
        return [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]

    def requests(self) -> list[str]:
        """Every address asked for since the last `open`, but data, blobs and the browser's own. Empties the log."""
        found = []
        for event in self._events():
            if event["method"] in {"Network.requestWillBeSent", "Network.webSocketCreated"}:
                url = event["params"].get("request", event["params"]).get("url", "")
                if not url.startswith(("data:", "blob:", "chrome:", "chrome-untrusted:")):
                    found.append(url)
        return found

    def complaints(self) -> list[str]:
        """Warnings and errors in the console. Empties the log."""
        return [
            f"{entry['level']}: {entry['message']}"
            for entry in self.driver.get_log("browser")
            if entry["level"] in {"SEVERE", "WARNING"}
        ]

    def close(self) -> None:
        self.driver.quit()


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser with a fresh profile, closed and removed afterwards."""
    program, driver = need_browser()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, driver, profile)
        try:
            yield browser
        finally:
            browser.close()
