-- The two roles of a topobench database. Run it once, as a superuser, connected to that database:
--     createdb topobench
--     psql -d topobench -f deploy/postgres/roles.sql
-- and give them passwords, or let pg_hba.conf admit them otherwise:
--     \password topobench_write
--     \password topobench_read
-- topobench_write makes and fills the tables: it is what `store:` in cluster.yaml logs in as.
-- topobench_read only reads them: for dashboards, and for `topobench query --sql`.
-- Running it again changes nothing. To undo: DROP OWNED BY and DROP ROLE, for both.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'topobench_write') THEN
        CREATE ROLE topobench_write LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'topobench_read') THEN
        CREATE ROLE topobench_read LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
    END IF;
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format(
        'GRANT CONNECT ON DATABASE %I TO topobench_write, topobench_read', current_database()
    );
END
$$;

REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO topobench_write;
GRANT USAGE ON SCHEMA public TO topobench_read;

-- What is there now, and what topobench_write will make.
GRANT SELECT ON ALL TABLES IN SCHEMA public TO topobench_read;
ALTER DEFAULT PRIVILEGES FOR ROLE topobench_write IN SCHEMA public
    GRANT SELECT ON TABLES TO topobench_read;

-- A reader can lift these in its own session; that it cannot write rests on the grants alone.
ALTER ROLE topobench_read SET default_transaction_read_only = on;
ALTER ROLE topobench_read SET statement_timeout = '60s';
ALTER ROLE topobench_read SET idle_in_transaction_session_timeout = '60s';
ALTER ROLE topobench_read SET temp_file_limit = '10GB';
