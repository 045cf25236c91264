import com.amazonaws.services.dynamodbv2.AcquireLockOptions;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBLockClient;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBLockClientOptions;
import com.amazonaws.services.dynamodbv2.LockItem;
import com.amazonaws.services.dynamodbv2.model.LockCurrentlyUnavailableException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.dynamodb.DynamoDbClient;

/**
 * Takes locks in DynamoDB with AWS's own lock client. What it does and says is written in ../go/peers.go.
 *
 * <pre>--endpoint URL --table TABLE --lock KEY --ttl SECONDS [--keep] [--update]</pre>
 *
 * What follows the word "bench" is for Contender.java.
 *
 * It deletes items when it releases them, unless --keep is given, and replaces existing ones as a whole, unless
 * --update is: these are the client's defaults. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY have to be set.
 */
final class Peer {
    private static final long REFRESH_MILLISECONDS = 50;

    private final Options options;
    private final AmazonDynamoDBLockClient client;

    private Peer(Options options) {
        this.options = options;
        client = client(options, TimeUnit.SECONDS.toMillis(options.number("ttl")));
    }

    static AmazonDynamoDBLockClient client(Options options, long leaseMilliseconds) {
        DynamoDbClient api = DynamoDbClient.builder()
                .endpointOverride(URI.create(options.text("endpoint")))
                .region(Region.US_EAST_1)
                .credentialsProvider(EnvironmentVariableCredentialsProvider.create())
                .build();
        return new AmazonDynamoDBLockClient(AmazonDynamoDBLockClientOptions.builder(api, options.text("table"))
                .withTimeUnit(TimeUnit.MILLISECONDS)
                .withLeaseDuration(leaseMilliseconds)
                .withHeartbeatPeriod(leaseMilliseconds / 3)
                .withCreateHeartbeatBackgroundThread(true)
                .build());
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("bench")) {
            try {
                Contender.run(Arrays.copyOfRange(arguments, 1, arguments.length));
            } catch (Exception exception) {
                System.err.println("peer: " + exception);
                System.exit(1);
            }
            System.exit(0);
        }
        Peer peer = new Peer(Options.read(arguments));
        switch (arguments[0]) {
            case "hold" -> peer.hold();
            case "try" -> peer.attempt();
            case "increment" -> peer.increment();
            default -> throw new IllegalArgumentException("there is no verb " + arguments[0]);
        }
        // Without closing the client, whose heartbeat may be asleep for long.
        System.exit(0);
    }

    /** What the command line says after the verb. */
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
    }

    private void hold() throws Exception {
        LockItem lock = acquire();
        say("granted");
        while (System.in.read() >= 0) {
            // What is written there has no meaning, only its end.
        }
        release(lock);
        say("released");
    }

    private void attempt() throws Exception {
        LockItem lock;
        try {
            // Not tryAcquireLock, which waits for a whole lease unless it is told not to, and throws then.
            lock = client.acquireLock(request().withShouldSkipBlockingWait(true).build());
        } catch (LockCurrentlyUnavailableException held) {
            say("held");
            System.exit(1);
            return;
        }
        say("granted");
        release(lock);
    }

    private void increment() throws Exception {
        Path file = Path.of(options.text("file"));
        for (int left = options.number("times"); left > 0; left--) {
            LockItem lock = acquire();
            long from = nanosecondsSinceBoot();
            long number = Long.parseLong(Files.readString(file).trim());
            // Neither atomic nor locked: two processes at once lose an addition or read half a number.
            Files.writeString(file, Long.toString(number + 1));
            long until = nanosecondsSinceBoot();
            release(lock);
            say(from + " " + until);
        }
    }

    private LockItem acquire() throws InterruptedException {
        return client.acquireLock(request().withAdditionalTimeToWaitForLock(TimeUnit.HOURS.toMillis(1)).build());
    }

    private AcquireLockOptions.AcquireLockOptionsBuilder request() {
        return AcquireLockOptions.builder(options.text("lock"))
                .withTimeUnit(TimeUnit.MILLISECONDS)
                .withRefreshPeriod(REFRESH_MILLISECONDS)
                .withDeleteLockOnRelease(!options.has("keep"))
                .withUpdateExistingLockRecord(options.has("update"));
    }

    private void release(LockItem lock) {
        if (!client.releaseLock(lock)) {
            throw new IllegalStateException("the lock was not held any more");
        }
    }

    /**
     * On Linux nanoTime counts from the start of the machine, but not while that is suspended; 0 if it ever was, since
     * the time could not be compared then.
     */
    private static long nanosecondsSinceBoot() throws Exception {
        long before = System.nanoTime();
        double uptime = Double.parseDouble(Files.readString(Path.of("/proc/uptime")).split(" ")[0]);
        long now = System.nanoTime();
        // The uptime is exact to 10 ms.
        return before - uptime * 1e9 < 5e7 && uptime * 1e9 - now < 5e7 ? now : 0;
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
