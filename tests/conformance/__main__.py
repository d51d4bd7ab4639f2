"""`python -m tests.conformance`: learn every case of the matrix; write its record and `docs/models.md`."""

from tests.conformance import document
from tests.helpers import one_thread

if __name__ == "__main__":
    with one_thread():
        document.write()
