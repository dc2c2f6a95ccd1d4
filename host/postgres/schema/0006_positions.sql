-- How far the readers of a log have come: webhooks by name, and traces. A process writes the row under the epoch in
-- which it owns the log, so one that has lost the log cannot overwrite the row of its successor, and with the number
-- of the write, so one that was given up and arrives late cannot overwrite a later one.
CREATE TABLE troupe.positions (
    kind  text     NOT NULL, -- webhook or traces
    name  text     NOT NULL,
    log   smallint NOT NULL,
    epoch bigint   NOT NULL,
    write bigint   NOT NULL,
    value bytea    NOT NULL,
    PRIMARY KEY (kind, name, log)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0.02);
