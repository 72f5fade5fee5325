"""Live sinks: records go to tables, files, webhooks and brokers while runs go on, each sink by a cursor of its own."""
