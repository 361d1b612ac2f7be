"""The service that schedules: plan, execute, commit; torch-free."""
