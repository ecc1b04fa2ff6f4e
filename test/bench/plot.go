package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/go-analyze/charts"
)

// plot is a chart of the first fork of each load, as SVG: the stall of the parent and the time
// to the first child, of each program.
type plot struct {
	axis   string   // what the loads are
	loads  []string // of the horizontal axis
	series []*curve // in the order of the legend
}

// curve is a line of a plot.
type curve struct {
	name    string
	seconds []float64
}

// newPlot returns an empty plot for the programs at the given paths.
func newPlot(programs []string) *plot {
	p := &plot{axis: "memory in use"}
	for _, path := range programs {
		for _, column := range []string{gFirst, gStall} {
			p.series = append(p.series, &curve{name: filepath.Base(path) + ": " + column})
		}
	}
	return p
}

// add appends the medians of a load, measured with one figure for each program.
func (p *plot) add(l load, programs []columns) {
	p.loads = append(p.loads, l.short())
	if l.files > 0 {
		p.axis = "memory in use, or written files"
	}
	for i, f := range programs {
		for j, column := range []string{gFirst, gStall} {
			seconds := math.NaN() // no room
			if ms, ok := f.median(column); ok {
				seconds = ms / 1000
			}
			c := p.series[2*i+j]
			c.seconds = append(c.seconds, seconds)
		}
	}
}

// short names the load at an axis.
func (l load) short() string {
	gb := func(n int64) string { return strconv.FormatFloat(float64(n)/1e9, 'f', -1, 64) + " GB" }
	if l.files > 0 {
		return gb(l.files) + " of files"
	}
	return gb(l.memory)
}

// write writes the plot into a file.
func (p *plot) write(path string) error {
	var values [][]float64
	var names []string
	for _, c := range p.series {
		names = append(names, c.name)
		values = append(values, c.seconds)
	}
	opt := charts.NewLineChartOptionWithData(values)
	opt.XAxis.Labels = p.loads
	opt.XAxis.Title = p.axis
	opt.YAxis[0].Title = "seconds after the call"
	opt.YAxis[0].Min = charts.Ptr(0.0)
	opt.Legend.SeriesNames = names
	opt.ValueFormatter = func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
	painter := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: 840, Height: 400})
	if err := painter.LineChart(opt); err != nil {
		return fmt.Errorf("drawing %s: %w", path, err)
	}
	svg, err := painter.Bytes()
	if err != nil {
		return fmt.Errorf("drawing %s: %w", path, err)
	}
	return os.WriteFile(path, svg, 0o644)
}
