package shm

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

func TestFreezeCopiesSegment(t *testing.T) {
	const size = 3 * hostarch.HugePageSize
	fd, err := unix.MemfdCreate("memory", 0)
	if err != nil {
		t.Fatal(err)
	}
	mf, err := pgalloc.NewMemoryFile(os.NewFile(uintptr(fd), "memory"), pgalloc.MemoryFileOpts{DisableIMAWorkAround: true})
	if err != nil {
		t.Fatal(err)
	}
	defer mf.Destroy()
	fr, err := mf.Allocate(size, pgalloc.AllocOpts{Kind: usage.Tmpfs})
	if err != nil {
		t.Fatal(err)
	}
	s := &Shm{mf: mf, effectiveSize: size}
	s.data.InsertRange(memmap.MappableRange{Start: 0, End: size}, fr.Start)
	was := bytes.Repeat([]byte("was"), size/3)
	if _, err := mf.File().WriteAt(was, int64(fr.Start)); err != nil {
		t.Fatal(err)
	}
	mf.FreezeFiles(1, mf.AppendFileRanges(nil))
	all := memmap.MappableRange{Start: 0, End: size}
	for _, start := range []uint64{hostarch.HugePageSize + hostarch.PageSize, size - hostarch.PageSize, 0} {
		required := memmap.MappableRange{Start: start, End: start + hostarch.PageSize}
		ts, err := s.Translate(context.Background(), required, all, hostarch.ReadWrite)
		if err := memmap.CheckTranslateResult(required, all, hostarch.ReadWrite, ts, err); err != nil || len(ts) != 1 {
			t.Fatalf("translated to %v: %v", ts, err)
		}
		if _, frozen := mf.FrozenPart(ts[0].FileRange()); frozen {
			t.Errorf("%v is frozen", ts[0])
		}
		got := make([]byte, ts[0].Source.Length())
		if _, err := mf.File().ReadAt(got, int64(ts[0].Offset)); err != nil || !bytes.Equal(got, was[ts[0].Source.Start:ts[0].Source.End]) {
			t.Errorf("%v has other content: %v", ts[0], err)
		}
		if _, err := mf.File().WriteAt([]byte("new"), int64(ts[0].Offset)); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, size)
	if _, err := mf.File().ReadAt(got, int64(fr.Start)); err != nil || !bytes.Equal(got, was) {
		t.Errorf("what was frozen has changed: %v", err)
	}
	mf.Thaw(1)
	if ts, err := s.Translate(context.Background(), all, all, hostarch.ReadWrite); err != nil || ts[0].Offset == fr.Start {
		t.Errorf("translated to %v: %v", ts, err)
	}
	s.data.DropAll(mf)
	if left := mf.AppendFileRanges(nil); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
	required := memmap.MappableRange{Start: size, End: size + hostarch.PageSize}
	if ts, err := s.Translate(context.Background(), required, required, hostarch.Read); len(ts) != 0 || err == nil {
		t.Errorf("beyond the segment, translated to %v, %v", ts, err)
	}
}
