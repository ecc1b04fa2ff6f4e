// Command gap reads the clock in a tight loop, and prints the length, in nanoseconds, of
// each pause of over 5 ms: how long its sandbox stood still.
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
