-- The processes of a cluster. A process whose lease has run out may be removed by one that takes its log.
CREATE TABLE troupe.members (
    member      text PRIMARY KEY,
    address     text        NOT NULL,
    lease_until timestamptz NOT NULL,
    since       timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20);

-- The cluster that the store belongs to; empty: one process at a time, held by an advisory lock.
ALTER TABLE troupe.store ADD COLUMN cluster text NOT NULL DEFAULT '';

-- One beat of a member, in one statement, so that a client that freezes or is cut off leaves no lock behind.
-- It returns the logs with their owners, and no row if the member was removed. package placement says what
-- it means.
CREATE FUNCTION troupe.beat(me text, place text, ttl interval, joined boolean, want int)
RETURNS TABLE (log smallint, owner text, address text, epoch bigint, live bigint) LANGUAGE plpgsql AS $$
DECLARE gone text;
BEGIN
    PERFORM 1 FROM troupe.store FOR UPDATE; -- one beat at a time, and each statement below sees those before
    IF joined THEN
        UPDATE troupe.members m SET lease_until = clock_timestamp() + ttl, address = place WHERE m.member = me;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    ELSE
        UPDATE troupe.logs l SET owner = '' WHERE l.owner = me;
        INSERT INTO troupe.members AS m (member, address, lease_until) VALUES (me, place, clock_timestamp() + ttl)
        ON CONFLICT (member) DO UPDATE SET address = place, lease_until = clock_timestamp() + ttl;
    END IF;
    IF want > 0 THEN
        -- A removed member cannot renew its lease. Its connections may hold the row of its log in a transaction
        -- whose client is gone, which no time-out ends.
        FOR gone IN DELETE FROM troupe.members m WHERE m.lease_until < clock_timestamp() RETURNING m.member LOOP
            PERFORM pg_terminate_backend(a.pid, 1000) FROM pg_stat_activity a WHERE a.application_name = 'troupe ' || gone;
        END LOOP;
        UPDATE troupe.logs l SET owner = me, epoch = l.epoch + 1, since = clock_timestamp() WHERE l.log IN (
            SELECT f.log FROM troupe.logs f WHERE NOT EXISTS (SELECT 1 FROM troupe.members m WHERE m.member = f.owner)
            ORDER BY f.log LIMIT want);
    END IF;
    RETURN QUERY SELECT l.log, coalesce(m.member, ''), coalesce(m.address, ''), l.epoch,
        (SELECT count(*) FROM troupe.members c WHERE c.lease_until > clock_timestamp())
        FROM troupe.logs l LEFT JOIN troupe.members m ON m.member = l.owner AND m.lease_until > clock_timestamp() ORDER BY l.log;
END $$;
