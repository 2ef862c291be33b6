"""What `scripts.sweep` is made of: a description, the trials' ledger, their processes, and what came of them."""
