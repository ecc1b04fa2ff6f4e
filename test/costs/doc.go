// Package costs computes the figures of docs/costs.md from those of GOALS.md.
package costs
