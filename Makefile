# Every word is explained by `make help`; the work is done by make.py, which also runs without make.
PYTHON ?= python3
SOLUTIONS ?=

.PHONY: help setup book lab test check course clean

help setup test check course clean:
	@$(PYTHON) make.py $@

book lab:
	@$(PYTHON) make.py $@ $(if $(filter-out 0,$(SOLUTIONS)),--solutions)
