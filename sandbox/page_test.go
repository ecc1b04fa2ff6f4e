package sandbox

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
)

// numbers lists 1 to n in parts of two, and counts the parts that were asked for.
func numbers(n int, asked *int) Lister[int] {
	return func(_ context.Context, page Page) (*List[int], error) {
		*asked++
		after, _ := strconv.Atoi(page.Cursor)
		part := &List[int]{}
		for i := after + 1; i <= min(after+2, n); i++ {
			part.Items = append(part.Items, i)
		}
		if after+2 < n {
			part.NextCursor = strconv.Itoa(after + 2)
		}
		return part, nil
	}
}

func TestAllReadsEveryPart(t *testing.T) {
	for n, parts := range map[int]int{0: 1, 1: 1, 2: 1, 3: 2, 4: 2, 5: 3} {
		asked := 0
		all, err := All(t.Context(), numbers(n, &asked))
		if err != nil || all == nil || len(all) != n || asked != parts || !slices.IsSorted(all) {
			t.Errorf("of %d: %v, %v, in %d parts, want %d", n, all, err, asked, parts)
		}
	}
}

func TestEachAsksForNoMoreThanIsRead(t *testing.T) {
	asked := 0
	for n := range Each(t.Context(), numbers(100, &asked)) {
		if n == 3 {
			break
		}
	}
	if asked != 2 {
		t.Errorf("%d parts were asked for, want 2", asked)
	}
}

// A list of which a later part fails is no list.
func TestAllFailsWithAPart(t *testing.T) {
	boom := errors.New("boom")
	asked := 0
	list := numbers(5, &asked)
	broken := func(ctx context.Context, page Page) (*List[int], error) {
		if page.Cursor != "" {
			return nil, boom
		}
		return list(ctx, page)
	}
	if all, err := All(t.Context(), broken); all != nil || err != boom {
		t.Errorf("got %v, %v", all, err)
	}
	seen := 0
	for _, err := range Each(t.Context(), Lister[int](broken)) {
		if seen++; err != nil && seen != 3 {
			t.Errorf("the error is at %d", seen)
		}
	}
	if seen != 3 {
		t.Errorf("%d pairs, want two items and an error", seen)
	}
}

func TestOfNamesTheSandbox(t *testing.T) {
	list := Of("x", func(_ context.Context, sandbox string, page Page) (*List[string], error) {
		return &List[string]{Items: []string{sandbox + page.Cursor}}, nil
	})
	if part, err := list(t.Context(), Page{Cursor: "c"}); err != nil || part.Items[0] != "xc" {
		t.Errorf("got %+v, %v", part, err)
	}
}
