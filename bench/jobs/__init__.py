"""The same six jobs in Shoal, Scrapy and Crawlee, as somebody would write them who can be killed at any time.

Each file is a program: `SHOP` is the address of the bundled shop, `OUT` the file for the records; some need `DATABASE`,
a PostgreSQL, or `BROKER`, a RabbitMQ. Scrapy keeps its state in a `JOBDIR`, Crawlee in its SQL storage.
"""
