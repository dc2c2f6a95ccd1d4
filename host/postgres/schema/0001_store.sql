-- The rows of package store. STORAGE and vacuum settings suit values that are written once or replaced whole.
CREATE TABLE troupe.kv (
    k bytea PRIMARY KEY,
    v bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE troupe.kv ALTER COLUMN v SET STORAGE EXTERNAL;

-- The head of each log. The row is the fence, the head and the lock of its log in one.
CREATE TABLE troupe.logs (
    log   smallint PRIMARY KEY,
    owner text     NOT NULL DEFAULT '', -- process that writes the log
    epoch bigint   NOT NULL DEFAULT 0,  -- raised by each process that takes the log
    batch bigint   NOT NULL DEFAULT 0,
    pos   bigint   NOT NULL DEFAULT 0,
    hash  bytea    NOT NULL DEFAULT '\x',
    since timestamptz
) WITH (fillfactor = 20);
INSERT INTO troupe.logs (log) VALUES (0);

CREATE TABLE troupe.store (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    node    text     NOT NULL,
    logs    smallint NOT NULL,
    format  text     NOT NULL,
    secret  bytea    NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now()
);
