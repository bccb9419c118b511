"""Refuses an account that may do more than read its database.

The rights of every role count that the account is a member of, and those of everybody (PUBLIC).
"""

from __future__ import annotations

from collections.abc import Sequence

from dbbench_adapter.engines.address import Address
from dbbench_adapter.engines.server import AccountError

_ALLOWED = "('SELECT', 'USAGE', 'CONNECT', 'TEMPORARY', 'EXECUTE')"
# Everybody may update pg_settings, which sets a setting of one's own session.
EXCESS = f"""
WITH mine AS (
    SELECT r.* FROM pg_catalog.pg_roles r, pg_catalog.pg_roles self
    WHERE self.rolname = current_user AND (r.oid = self.oid OR NOT self.rolsuper AND pg_has_role(r.oid, 'MEMBER'))
), acls AS (
    SELECT 'database ' || quote_ident(datname) AS what, coalesce(datacl, acldefault('d', datdba)) AS acl
    FROM pg_catalog.pg_database WHERE datname = current_database()
    UNION ALL SELECT 'schema ' || quote_ident(nspname), coalesce(nspacl, acldefault('n', nspowner))
    FROM pg_catalog.pg_namespace
    UNION ALL SELECT CASE relkind WHEN 'S' THEN 'sequence ' ELSE '' END || oid::regclass, relacl
    FROM pg_catalog.pg_class
    UNION ALL SELECT attrelid::regclass || '.' || quote_ident(attname), attacl FROM pg_catalog.pg_attribute
    UNION ALL SELECT 'large object ' || oid, lomacl FROM pg_catalog.pg_largeobject_metadata
    UNION ALL SELECT 'foreign server ' || quote_ident(srvname), srvacl FROM pg_catalog.pg_foreign_server
), granted AS (
    SELECT what, privilege_type || CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS privilege,
        grantee = 0 AS everybody
    FROM acls, aclexplode(acl)
    WHERE (grantee = 0 OR grantee IN (SELECT oid FROM mine)) AND what <> 'pg_settings'
        AND (privilege_type NOT IN {_ALLOWED} OR is_grantable OR what LIKE 'sequence %' AND privilege_type <> 'SELECT'
            OR what LIKE 'foreign server %')
)
SELECT format('%s%s', name, CASE WHEN rolname <> current_user THEN ' by the role ' || quote_ident(rolname) END)
FROM mine, LATERAL (VALUES ('SUPERUSER', rolsuper), ('CREATEROLE', rolcreaterole), ('CREATEDB', rolcreatedb),
    ('REPLICATION', rolreplication), ('BYPASSRLS', rolbypassrls)) attribute(name, has) WHERE has
UNION ALL SELECT 'a member of ' || rolname FROM mine
WHERE rolname ~ '^pg_' AND rolname <> 'pg_read_all_data'
UNION ALL SELECT 'owner of ' || CASE WHEN dbid IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
    THEN pg_describe_object(classid, objid, objsubid) ELSE 'a part of another database' END
FROM pg_catalog.pg_shdepend
WHERE deptype = 'o' AND refclassid = 'pg_authid'::regclass AND refobjid IN (SELECT oid FROM mine)
UNION ALL SELECT format('%s on %s%s', string_agg(privilege, ', ' ORDER BY privilege), what,
    CASE WHEN everybody THEN ' as everybody (PUBLIC)' END)
FROM granted GROUP BY what, everybody
"""
"""A query for what the account has too much, a line each; none means that it may only read."""
_SHOWN = 5


def check_account(excess: Sequence[str], address: Address, schemas: Sequence[str]) -> None:
    """
    Args:
        excess: the lines of `EXCESS`.
        schemas: those of the search path, quoted.
    Raises:
        AccountError: the message says what is too much, and gives the statements that make an account.
    """
    if not excess:
        return
    more = f" and {len(excess) - _SHOWN} more" if len(excess) > _SHOWN else ""
    database = '"' + address.database.replace('"', '""') + '"'
    listed = ", ".join(schemas) or "public"
    revoked = [
        f"REVOKE CREATE ON {what.split(' on ')[1].removesuffix(_EVERYBODY)} FROM PUBLIC;"
        for what in excess
        if what.startswith("CREATE on ") and what.endswith(_EVERYBODY)
    ]
    raise AccountError(
        f"{address.shown}: the account may do more than read this database: {' and '.join(excess[:_SHOWN])}{more}; "
        "make one that may only read, and give its address: CREATE ROLE agent_reader LOGIN PASSWORD '...'; "
        f"GRANT CONNECT ON DATABASE {database} TO agent_reader; GRANT USAGE ON SCHEMA {listed} TO agent_reader; "
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {listed} TO agent_reader; {' '.join(revoked)}".rstrip()
    )


_EVERYBODY = " as everybody (PUBLIC)"
