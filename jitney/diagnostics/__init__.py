"""The event log for people: `report` (as data), `render` (as text, JSON, HTML), `logs`, `dumps`.

`equality` defines when a compiled result is equal to eager's; tests and benchmarks share it.
"""
