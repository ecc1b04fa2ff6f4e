-- +goose Up
-- A server that starts reads all sandboxes, of whatever team, page by page.
CREATE INDEX sandboxes_created ON sandboxes (created_at, id);

-- A quota sums up the living sandboxes of a team, mostly from the index.
DROP INDEX sandboxes_living_team;
CREATE INDEX sandboxes_living_team ON sandboxes (team) INCLUDE (state, vcpus, memory_mib, disk_mib, kept_bytes)
    WHERE state NOT IN ('killed', 'failed');
