import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/** A contender of the benchmark. ../go/contender.go describes its commands and output. */
final class Contender {
    /** How often `contend` acquires the warm-up lock at most: more often than elsewhere, because Java is slow at first. */
    private static final int WARM_CYCLES = 200;
    /** The time limit of the warm-up. */
    private static final Duration WARM_TIME = Duration.ofSeconds(4);
    /** How many locks `many` acquires or releases concurrently. */
    private static final int AT_ONCE = 64;

    private final Peers.Options options;
    private final Client client;
    private final BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private final PrintStream output = System.out;

    interface Connector {
        Client connect(Peers.Options options) throws Exception;
    }

    /** The client under test, which the tasks of a process share. */
    interface Client {
        /** Waits for the lock, until the thread is interrupted. Another thread may release it. */
        Held acquire(String lock) throws InterruptedException;
    }

    interface Held {
        /** Fails if the lock is no longer held. */
        void release();

        /** Returns whether the client has lost the lock. */
        boolean lost();
    }

    private Contender(Peers.Options options, Connector connector) throws Exception {
        this.options = options;
        client = connector.connect(options);
    }

    static void run(String[] arguments, Connector connector) throws Exception {
        if (arguments.length == 0) {
            throw new IllegalArgumentException("there is no verb after bench");
        }
        Contender contender = new Contender(Peers.Options.read(arguments), connector);
        switch (arguments[0]) {
            case "contend" -> contender.contend();
            case "hold" -> contender.hold();
            case "many" -> contender.many();
            default -> throw new IllegalArgumentException("there is no verb " + arguments[0]);
        }
    }

    /** Acquires another lock at most this many times, prints "ready", and waits for the start. */
    private void ready(int cycles) throws InterruptedException, IOException {
        String lock = options.text("lock") + "-warm-" + ProcessHandle.current().pid();
        long began = System.nanoTime();
        for (int cycle = 0; cycle < cycles && System.nanoTime() - began < WARM_TIME.toNanos(); cycle++) {
            client.acquire(lock).release();
        }
        say("ready");
        String line = input.readLine();
        if (!"go".equals(line)) {
            throw new IOException(line + " came instead of the line go");
        }
    }

    private void contend() throws Exception {
        List<Task> tasks = new ArrayList<>();
        for (int number = 0; number < options.number("tasks"); number++) {
            tasks.add(new Task());
        }
        boolean counted = options.has("count");
        ready(WARM_CYCLES);
        // A cached pool has as many threads as there are tasks.
        ExecutorService threads = Executors.newCachedThreadPool();
        long until = counted ? Long.MAX_VALUE : System.nanoTime() + TimeUnit.SECONDS.toNanos(options.number("seconds"));
        List<Future<?>> running = new ArrayList<>();
        for (Task task : tasks) {
            running.add(threads.submit(task));
        }
        if (!counted) {
            TimeUnit.NANOSECONDS.sleep(until - System.nanoTime());
            // Interrupt repeatedly, because the client continues after the interruption of a request.
            while (!running.stream().allMatch(Future::isDone)) {
                tasks.forEach(Task::giveUp);
                TimeUnit.MILLISECONDS.sleep(20);
            }
        }
        for (Future<?> task : running) {
            task.get();
        }
        StringBuilder lines = new StringBuilder();
        for (int task = 0; task < tasks.size(); task++) {
            for (long[] event : tasks.get(task).events) {
                lines.append("E ").append(task);
                Arrays.stream(event).forEach(moment -> lines.append(' ').append(moment));
                lines.append('\n');
            }
        }
        output.print(lines);
        say("done");
    }

    /** One task of `contend`. */
    private final class Task implements Runnable {
        private final List<long[]> events = new ArrayList<>();
        private final long hold = TimeUnit.MICROSECONDS.toNanos(options.number("hold-us"));
        private final long count = options.has("count") ? options.number("count") : Long.MAX_VALUE;
        private Thread waiting;
        private boolean over;

        @Override
        public void run() {
            for (long left = count; left > 0; left--) {
                long asked = now();
                Held lock = attempt();
                if (lock == null) {
                    return;
                }
                long granted = now();
                for (long until = System.nanoTime() + hold, now = System.nanoTime(); now < until; now = System.nanoTime()) {
                    LockSupport.parkNanos(until - now);
                }
                long releasing = now();
                lock.release();
                events.add(new long[] {asked, granted, releasing, now()});
            }
        }

        /** Returns the lock, or null if the time is over. */
        private Held attempt() {
            synchronized (this) {
                if (over) {
                    return null;
                }
                waiting = Thread.currentThread();
            }
            Held lock = null;
            Exception failure = null;
            try {
                lock = client.acquire(options.text("lock"));
            } catch (InterruptedException | RuntimeException exception) {
                failure = exception;
            }
            synchronized (this) {
                waiting = null;
                // The lock may have been granted nevertheless. Clear the interrupt, so that it does not reach the release.
                Thread.interrupted();
                if (failure != null && !over) {
                    throw new IllegalStateException(failure);
                }
            }
            return lock;
        }

        synchronized void giveUp() {
            over = true;
            if (waiting != null) {
                waiting.interrupt();
            }
        }
    }

    private void hold() throws Exception {
        ready(1);
        Held lock = client.acquire(options.text("lock"));
        say("granted " + now());
        while (input.read() >= 0) {
            // Only the end of the input has a meaning.
        }
        lock.release();
    }

    private void many() throws Exception {
        int count = options.number("locks");
        ready(1);
        Held[] locks = new Held[count];
        ExecutorService threads = Executors.newFixedThreadPool(AT_ONCE);
        each(threads, count, number -> locks[number] = client.acquire(options.text("lock") + number));
        say("held");
        TimeUnit.SECONDS.sleep(options.number("seconds"));
        long lost = 0;
        for (int number = 0; number < count; number++) {
            if (locks[number].lost()) {
                locks[number] = null;
                lost++;
            }
        }
        if (lost > 0) {
            say("lost " + lost);
        }
        say("done");
        each(threads, count, number -> {
            if (locks[number] != null) {
                locks[number].release();
            }
        });
    }

    private interface Step {
        void take(int number) throws Exception;
    }

    private static void each(ExecutorService threads, int count, Step step)
            throws InterruptedException, ExecutionException {
        List<Future<?>> running = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            int own = number;
            running.add(threads.submit(() -> {
                step.take(own);
                return null;
            }));
        }
        for (Future<?> task : running) {
            task.get();
        }
    }

    private void say(String line) {
        output.println(line);
        output.flush();
    }

    /** Returns microseconds on the wall clock. */
    private static long now() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }
}
