package server

import (
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
	"golang.org/x/term"

	"github.com/cove-sh/cove/internal/daemon/config"
)

// NewLog returns a logger to w as the configuration says.
func NewLog(cfg config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	if level.UnmarshalText([]byte(cfg.Level)) != nil {
		level = slog.LevelInfo
	}
	file, isFile := w.(*os.File)
	switch {
	case cfg.Format == "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
	case cfg.Format == "auto" && isFile && term.IsTerminal(int(file.Fd())):
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: "15:04:05"}))
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
