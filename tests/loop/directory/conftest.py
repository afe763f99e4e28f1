from tests.git.conftest import repository  # noqa: F401 - a fixture
