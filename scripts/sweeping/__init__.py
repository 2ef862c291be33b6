"""Parts of `scripts.sweep`: sweep descriptions, the Optuna study, workers with child processes, and results."""
