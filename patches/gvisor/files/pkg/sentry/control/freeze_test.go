package control

import (
	"reflect"
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

const page = 4096

// pages returns ranges of pages, from starts and ends.
func pages(ends ...uint64) (rs []memmap.FileRange) {
	for ; len(ends) > 0; ends = ends[2:] {
		rs = append(rs, memmap.FileRange{Start: ends[0] * page, End: ends[1] * page})
	}
	return rs
}

func TestFreezeSubtractsRanges(t *testing.T) {
	for name, tt := range map[string]struct{ rs, others, want []memmap.FileRange }{
		"all":          {pages(0, 4, 6, 8), pages(0, 9), nil},
		"nothing":      {pages(0, 4), pages(4, 6), pages(0, 4)},
		"none":         {pages(0, 4), nil, pages(0, 4)},
		"the middle":   {pages(0, 9), pages(2, 3, 5, 6), pages(0, 2, 3, 5, 6, 9)},
		"the ends":     {pages(2, 8), pages(0, 3, 7, 9), pages(3, 7)},
		"one of many":  {pages(0, 2, 3, 5), pages(1, 4), pages(0, 1, 4, 5)},
		"of two one":   {pages(0, 2, 4, 6), pages(4, 6), pages(0, 2)},
		"exactly each": {pages(0, 2, 4, 6), pages(0, 2, 4, 6), nil},
	} {
		if got := subtractRanges(tt.rs, tt.others); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

func TestFreezeRefusesRanges(t *testing.T) {
	rs, err := unflatten(flatten(pages(0, 2, 2, 4, 7, 8)))
	if err != nil || !reflect.DeepEqual(rs, pages(0, 2, 2, 4, 7, 8)) {
		t.Errorf("got %v, %v", rs, err)
	}
	for name, flat := range map[string][]uint64{
		"an odd number": {0, page, page},
		"empty":         {page, page},
		"backwards":     {2 * page, page},
		"unsorted":      {2 * page, 3 * page, 0, page},
		"overlapping":   {0, 2 * page, page, 3 * page},
		"no pages":      {0, 100},
		"too many":      make([]uint64, 2*maxFrozenRanges+2),
	} {
		if rs, err := unflatten(flat); err == nil {
			t.Errorf("%s: %v", name, rs)
		}
	}
}
