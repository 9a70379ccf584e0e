"""`python -m fluxion_cy`: a prompt for those who know resource-query."""

import sys

from fluxion_cy.query.shell import main

sys.exit(main())
