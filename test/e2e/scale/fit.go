package scale

import (
	"fmt"
	"math"
)

// Line is the line of least squares through points: y = A + B·x.
type Line struct {
	A, B      float64
	Residuals []float64

	points      int
	mean, sumSq float64 // of x: its mean, and the sum of squares around it
	err         float64 // standard error of the residuals
}

// Fit returns the line through at least three points with two different x.
func Fit(x, y []float64) (Line, error) {
	n := len(x)
	if n != len(y) || n < 3 {
		return Line{}, fmt.Errorf("fit a line: %d and %d coordinates; want three points or more", n, len(y))
	}
	var meanX, meanY, xx, xy, squares float64
	for i := range x {
		meanX += x[i] / float64(n)
		meanY += y[i] / float64(n)
	}
	for i := range x {
		xx += (x[i] - meanX) * (x[i] - meanX)
		xy += (x[i] - meanX) * (y[i] - meanY)
	}
	if xx == 0 {
		return Line{}, fmt.Errorf("fit a line: all points have x = %g", meanX)
	}
	l := Line{B: xy / xx, points: n, mean: meanX, sumSq: xx}
	l.A = meanY - l.B*meanX
	for i := range x {
		r := y[i] - l.A - l.B*x[i]
		l.Residuals = append(l.Residuals, r)
		squares += r * r
	}
	l.err = math.Sqrt(squares / float64(n-2))
	return l, nil
}

// student95 is the factor of a 95 % interval by degrees of freedom, from 1 on.
var student95 = []float64{12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31}

// At returns y at x, and half the width of the interval that contains a new measurement with a
// probability of 95 %, if the line is the right model.
func (l Line) At(x float64) (y, plusMinus float64) {
	factor := student95[min(l.points-2, len(student95))-1]
	spread := l.err * math.Sqrt(1+1/float64(l.points)+(x-l.mean)*(x-l.mean)/l.sumSq)
	return l.A + l.B*x, factor * spread
}
