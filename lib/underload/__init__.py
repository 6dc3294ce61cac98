"""Under Load: queueing, batching, paging and tails in LLM serving.

Every question is answered three ways: predicted by a formula, simulated on a virtual clock, and
measured on a real decoder. Start with `underload.request` (the vocabulary), then `underload.decoder`
(the model that runs), then `underload.metrics` (what its timelines say).
"""

__version__ = "0.1.0"
