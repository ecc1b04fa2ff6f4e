package cells

import (
	"cmp"
	"slices"
)

// spans are disjoint ranges of a file, in ascending order.
type spans []span

type span struct{ from, to int64 }

// add adds a range, which may overlap others.
func (s *spans) add(from, to int64) {
	if from >= to {
		return
	}
	// The ranges that overlap it or adjoin it become part of it.
	i, _ := slices.BinarySearchFunc(*s, from, func(r span, at int64) int { return cmp.Compare(r.to, at) })
	j := i
	for ; j < len(*s) && (*s)[j].from <= to; j++ {
		from, to = min(from, (*s)[j].from), max(to, (*s)[j].to)
	}
	*s = slices.Replace(*s, i, j, span{from, to})
}

// contain reports whether all of a range is in one of them.
func (s spans) contain(from, to int64) bool {
	i, _ := slices.BinarySearchFunc(s, to, func(r span, at int64) int { return cmp.Compare(r.to, at) })
	return from >= to || i < len(s) && s[i].from <= from
}
