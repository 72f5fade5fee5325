#!/bin/sh
# Writes the address of PostgreSQL and the login where pgbouncer.ini expects them, then becomes PgBouncer.
set -eu
umask 077
mkdir -p /tmp/pgbouncer
printf '%s = host=%s port=%s\n' "$DB_NAME" "$DB_HOST" "${DB_PORT:-5432}" >/tmp/pgbouncer/databases.ini
# In that file a double quote is written twice.
password=$(sed 's/"/""/g' "$DB_PASSWORD_FILE")
printf '"%s" "%s"\n' "$DB_USER" "$password" >/tmp/pgbouncer/users.txt
exec pgbouncer /etc/shoal/pgbouncer.ini
