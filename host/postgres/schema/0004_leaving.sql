-- A member that somebody has asked to leave: it ends, and another takes its log.
ALTER TABLE troupe.members ADD COLUMN leaving boolean NOT NULL DEFAULT false;

-- Asks a member to leave, in one statement as a beat is. It returns 'unknown', 'last' if no other member could follow,
-- or 'asked'. One that could follow was not asked to leave, and has a lease that ends after another time: a lease
-- outlives its process, so it must have been renewed since.
CREATE FUNCTION troupe.drain(who text, past timestamptz) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM troupe.store FOR UPDATE; -- each statement below sees the drains and beats before
    IF NOT EXISTS (SELECT 1 FROM troupe.members m WHERE m.member = who) THEN
        RETURN 'unknown';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM troupe.members m WHERE m.member <> who AND NOT m.leaving AND m.lease_until > past) THEN
        RETURN 'last';
    END IF;
    UPDATE troupe.members m SET leaving = true WHERE m.member = who;
    RETURN 'asked';
END $$;
