// Measures the lock of the Go client, and prints a line of JSON. `./bench-clients` runs it.
//
//	bench leasehold SECONDS STORE
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"strconv"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

func main() {
	if len(os.Args) != 4 || os.Args[1] != "leasehold" {
		log.Fatal("usage: bench leasehold SECONDS STORE")
	}
	seconds, err := strconv.ParseFloat(os.Args[2], 64)
	if err != nil {
		log.Fatal(err)
	}
	ctx, client := context.Background(), leasehold.New(os.Args[3])
	defer client.Close()
	lock := client.Lock("bench")
	once := func() {
		if err := lock.Do(ctx, func(context.Context) error { return nil }); err != nil {
			log.Fatal(err)
		}
	}
	for range 20 {
		once()
	}
	times := []float64{}
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for start := time.Now(); start.Before(end); start = time.Now() {
		once()
		times = append(times, time.Since(start).Seconds())
	}
	if err := json.NewEncoder(os.Stdout).Encode(times); err != nil {
		log.Fatal(err)
	}
}
