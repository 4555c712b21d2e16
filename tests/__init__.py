from hypothesis import settings

# Tests assert results, never times; here, not in conftest.py, because `tests/sanitize.sh` runs without it.
settings.register_profile("results", deadline=None)
settings.load_profile("results")
