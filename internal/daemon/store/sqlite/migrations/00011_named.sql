-- +goose Up
-- The checkpoints and volumes that this database has, or had, a record of and whose
-- files are not known to be removed. Files that are not in here were never this
-- database's to remove: it may be older than they are.
CREATE TABLE named (
    id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

INSERT INTO named SELECT checkpoint FROM snapshots WHERE checkpoint <> ''
    UNION SELECT checkpoint FROM sandboxes WHERE checkpoint <> ''
    UNION SELECT fork_point FROM sandboxes WHERE fork_point <> ''
    UNION SELECT id FROM volumes;

-- +goose StatementBegin
CREATE TRIGGER named_snapshots AFTER INSERT ON snapshots WHEN NEW.checkpoint <> '' BEGIN
    INSERT OR IGNORE INTO named VALUES (NEW.checkpoint);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER named_volumes AFTER INSERT ON volumes BEGIN
    INSERT OR IGNORE INTO named VALUES (NEW.id);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER named_new AFTER INSERT ON sandboxes WHEN NEW.checkpoint <> '' OR NEW.fork_point <> '' BEGIN
    INSERT OR IGNORE INTO named SELECT NEW.checkpoint WHERE NEW.checkpoint <> '';
    INSERT OR IGNORE INTO named SELECT NEW.fork_point WHERE NEW.fork_point <> '';
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER named_kept AFTER UPDATE ON sandboxes WHEN NEW.checkpoint <> OLD.checkpoint AND NEW.checkpoint <> '' BEGIN
    INSERT OR IGNORE INTO named VALUES (NEW.checkpoint);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER named_forks AFTER UPDATE ON sandboxes WHEN NEW.fork_point <> OLD.fork_point AND NEW.fork_point <> '' BEGIN
    INSERT OR IGNORE INTO named VALUES (NEW.fork_point);
END;
-- +goose StatementEnd
