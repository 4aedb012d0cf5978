package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !For(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("a minute took %v", time.Since(began))
		}
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		began = time.Now()
		if For(ctx, time.Hour) || time.Since(began) != time.Second {
			t.Errorf("ended after a second, it took %v", time.Since(began))
		}
	})
}
