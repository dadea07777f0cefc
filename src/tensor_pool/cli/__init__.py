"""The `tensor-pool` command. Each command is a module of its own that is imported when it runs."""
