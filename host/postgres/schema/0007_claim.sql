-- A claim waited up to 0.1 s for the end of each connection of a removed member, which has dozens: its own lease, and those
-- of all whose beats wait behind it, ran out meanwhile. Now it waits for the rows that it takes only.
CREATE OR REPLACE FUNCTION troupe.beat(me text, place text, ttl interval, joined boolean, want int)
RETURNS TABLE (log smallint, owner text, address text, epoch bigint, live bigint) LANGUAGE plpgsql AS $$
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
        WITH gone AS (DELETE FROM troupe.members m WHERE m.lease_until < clock_timestamp() RETURNING 'troupe ' || m.member AS name)
        SELECT count(pg_terminate_backend(a.pid)) INTO live FROM pg_stat_activity a JOIN gone ON a.application_name = gone.name;
        UPDATE troupe.logs l SET owner = me, epoch = l.epoch + 1, since = clock_timestamp() WHERE l.log IN (
            SELECT f.log FROM troupe.logs f WHERE NOT EXISTS (SELECT 1 FROM troupe.members m WHERE m.member = f.owner)
            ORDER BY f.log LIMIT want);
    END IF;
    RETURN QUERY SELECT l.log, coalesce(m.member, ''), coalesce(m.address, ''), l.epoch,
        (SELECT count(*) FROM troupe.members c WHERE c.lease_until > clock_timestamp())
        FROM troupe.logs l LEFT JOIN troupe.members m ON m.member = l.owner AND m.lease_until > clock_timestamp() ORDER BY l.log;
END $$;
