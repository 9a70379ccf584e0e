"""`python -m fluxion_cy`: the prompt of `resource-query`."""

import sys

from fluxion_cy.query.shell import main

sys.exit(main())
