-- A member that somebody has asked to leave: it ends, and another takes its log.
ALTER TABLE troupe.members ADD COLUMN leaving boolean NOT NULL DEFAULT false;
