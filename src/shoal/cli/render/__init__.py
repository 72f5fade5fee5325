"""What the commands share: session, streams, common options, tables, confirmation, lazy loading."""
