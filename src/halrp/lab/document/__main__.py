"""`python -m halrp.lab.document`."""

from halrp.lab.document import main

main()
