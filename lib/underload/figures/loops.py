"""The two kinds of load in one drawing: who sets the pace."""

from __future__ import annotations

from underload.figures.pen import Pen, drawing
from underload.figures.still import Picture


def open_and_closed(*, caption: str = "", name: str | None = None) -> Picture:
    """An open loop, which requests enter from outside and leave, and a closed one, in which users go round."""

    def server(pen: Pen, x: float, y: float, right: float) -> None:
        """An arrow from x on, a line, and a server that ends at `right`."""
        width, places = (62.0, 2) if pen.narrow else (76.0, 4)
        line = right - width - 26
        for place in range(places):
            pen.box(line - 16 * (place + 1), y + 5, 13, 20, look="queue")
        pen.arrow(line + 2, y + 15, line + 23, y + 15)
        pen.box(right - width, y, width, 30, "server", look="decode")
        pen.arrow(x, y + 15, line - 16 * places - 4, y + 15)

    def draw(pen: Pen) -> None:
        left, right = 4.0, pen.width - (58 if pen.narrow else 78)
        people = 78.0
        pen.text(left, 13, "open: the clock sends", bold=True)
        y = 26.0
        pen.text(left, y + 20, "whoever is due", size="small")
        server(pen, left + people + 8, y, right)
        pen.arrow(right + 3, y + 15, pen.width - 32, y + 15)
        pen.text(pen.width - 28, y + 20, "gone", size="small")

        pen.text(left, y + 78, "closed: the answer sends", bold=True)
        y += 92
        pen.box(left, y, people, 30, "users think", look="prefill", small=True)
        server(pen, left + people + 4, y, right)
        back = y + 52
        pen.line(right, y + 15, right + 18, y + 15)
        pen.line(right + 18, y + 15, right + 18, back)
        pen.line(right + 18, back, left + people / 2, back)
        pen.arrow(left + people / 2, back, left + people / 2, y + 33)
        pen.text((left + people / 2 + right) / 2, back - 6, "answer", size="small", look="quiet", anchor="middle")
        pen.height = back + 10

    return drawing(
        "Two loops around the same line and server. Open: requests come from outside when they are due, are served and "
        "are gone. Closed: a fixed number of users think, send, wait in line, are served, and the answer leads back to "
        "the user, who only then can send again.",
        draw,
        caption=caption,
        name=name,
    )
