import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

/** The common part of the Java programs that acquire locks with another client. ../go/peers.go has their commands. */
final class Peers {
    private Peers() {}

    /** A lock of the client under test. */
    interface Lock {
        /** Waits for the lock. */
        void acquire() throws Exception;

        /** Acquires the lock, or returns false at once if another client holds it. */
        boolean attempt() throws Exception;

        /** Fails if the lock is no longer held. */
        void release() throws Exception;
    }

    interface Opener {
        Lock open(Options options) throws Exception;
    }

    /**
     * Runs the command line and ends the program. The commands of the tests use the opener, and those of the benchmark use
     * the connector.
     */
    static void run(String[] arguments, Opener opener, Contender.Connector connector) {
        int code = 0;
        boolean bench = arguments[0].equals("bench");
        try {
            if (bench) {
                Contender.run(Arrays.copyOfRange(arguments, 1, arguments.length), connector);
            } else {
                Options options = Options.read(arguments);
                code = run(arguments[0], options, opener.open(options));
            }
        } catch (Exception exception) {
            System.err.println("peer: " + exception);
            code = bench ? 1 : 2;
        }
        // Do not close the client, because its threads may sleep for long.
        System.exit(code);
    }

    /** The options of the command line after the verb. */
    static final class Options {
        private final Map<String, String> values = new HashMap<>();

        static Options read(String[] arguments) {
            Options options = new Options();
            for (int i = 1; i < arguments.length; i++) {
                boolean alone = i + 1 == arguments.length || arguments[i + 1].startsWith("--");
                options.values.put(arguments[i].substring("--".length()), alone ? "" : arguments[++i]);
            }
            return options;
        }

        boolean has(String name) {
            return values.containsKey(name);
        }

        String text(String name) {
            String value = values.get(name);
            if (value == null) {
                throw new IllegalArgumentException("--" + name + " is missing");
            }
            return value;
        }

        int number(String name) {
            return Integer.parseInt(text(name));
        }

        /** Returns the lease duration, which is given in seconds, or in milliseconds for the benchmark. */
        long ttlMilliseconds() {
            return has("ttl-ms") ? number("ttl-ms") : number("ttl") * 1000L;
        }
    }

    private static int run(String verb, Options options, Lock lock) throws Exception {
        switch (verb) {
            case "hold" -> hold(lock);
            case "try" -> {
                return attempt(lock) ? 0 : 1;
            }
            case "increment" -> increment(lock, Path.of(options.text("file")), options.number("times"));
            default -> throw new IllegalArgumentException("there is no verb " + verb);
        }
        return 0;
    }

    private static void hold(Lock lock) throws Exception {
        lock.acquire();
        say("granted");
        while (System.in.read() >= 0) {
            // Only the end of the input has a meaning.
        }
        lock.release();
        say("released");
    }

    private static boolean attempt(Lock lock) throws Exception {
        boolean granted = lock.attempt();
        say(granted ? "granted" : "held");
        if (granted) {
            lock.release();
        }
        return granted;
    }

    private static void increment(Lock lock, Path file, int times) throws Exception {
        for (int left = times; left > 0; left--) {
            lock.acquire();
            long from = nanosecondsSinceBoot();
            long number = Long.parseLong(Files.readString(file).trim());
            // This is neither atomic nor locked. Two processes at once would lose an addition or read half a number.
            Files.writeString(file, Long.toString(number + 1));
            long until = nanosecondsSinceBoot();
            lock.release();
            say(from + " " + until);
        }
    }

    /**
     * Returns nanoseconds since boot, or 0 if the machine was ever suspended. On Linux, nanoTime counts from boot, but
     * not while the machine is suspended. After that, it cannot be compared with the clocks of other programs.
     */
    private static long nanosecondsSinceBoot() throws IOException {
        long before = System.nanoTime();
        double uptime = Double.parseDouble(Files.readString(Path.of("/proc/uptime")).split(" ")[0]);
        long now = System.nanoTime();
        // The uptime is exact to 10 ms.
        return before - uptime * 1e9 < 5e7 && uptime * 1e9 - now < 5e7 ? now : 0;
    }

    /** Prints a line for the test. Nothing else prints to stdout: the JVM's own warnings go to stderr. */
    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
