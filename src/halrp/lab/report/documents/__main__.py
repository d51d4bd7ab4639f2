"""`python -m halrp.lab.report.documents`."""

from halrp.lab.report.documents import main

main()
