// Command gap looks at the clock as often as it can, and writes a line with the
// length, in nanoseconds, of each time in which it could not for over 5 ms: as
// long as its sandbox stood still.
package main

import (
	"fmt"
	"time"
)

const shortest = 5 * time.Millisecond

func main() {
	last := time.Now()
	for {
		time.Sleep(200 * time.Microsecond)
		now := time.Now()
		if gap := now.Sub(last); gap > shortest {
			fmt.Println(int64(gap))
		}
		last = time.Now()
	}
}
