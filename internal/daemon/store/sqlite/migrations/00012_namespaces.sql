-- +goose Up
-- Names are unique in a namespace, no longer in a whole team. Snapshots are in that
-- of their sandbox, as far as its record is still there.

ALTER TABLE snapshots ADD COLUMN namespace TEXT NOT NULL DEFAULT 'default';
UPDATE snapshots SET namespace = coalesce((SELECT namespace FROM sandboxes WHERE sandboxes.id = snapshots.sandbox_id), 'default');

DROP INDEX sandboxes_living_name;
CREATE UNIQUE INDEX sandboxes_living_name ON sandboxes (team, namespace, name)
    WHERE name <> '' AND state NOT IN ('killed', 'failed');
DROP INDEX snapshots_name;
CREATE UNIQUE INDEX snapshots_name ON snapshots (team, namespace, name) WHERE name <> '';
