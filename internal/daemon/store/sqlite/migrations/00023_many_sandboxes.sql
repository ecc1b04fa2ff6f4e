-- +goose Up
-- A quota sums up the living sandboxes of a team, mostly from the index.
CREATE INDEX sandboxes_living_team ON sandboxes (team, state, vcpus, memory_mib, disk_mib, kept_bytes)
    WHERE state NOT IN ('killed', 'failed');
