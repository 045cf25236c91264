import com.amazonaws.services.dynamodbv2.AcquireLockOptions;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBLockClient;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBLockClientOptions;
import com.amazonaws.services.dynamodbv2.LockItem;
import com.amazonaws.services.dynamodbv2.model.LockCurrentlyUnavailableException;
import java.net.URI;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.dynamodb.DynamoDbClient;

/**
 * Acquires locks in DynamoDB with AWS's own lock client.
 *
 * <pre>--endpoint URL --table TABLE --lock KEY --ttl SECONDS [--keep] [--update]
 * bench ... --endpoint URL --table TABLE --lock KEY --ttl-ms MILLISECONDS</pre>
 *
 * By default, as in the client, it deletes items when it releases them and replaces existing items as a whole. With
 * --keep it keeps released items, and with --update it updates existing ones. AWS_ACCESS_KEY_ID and
 * AWS_SECRET_ACCESS_KEY must be set.
 */
final class Peer implements Peers.Lock {
    private static final long REFRESH_MILLISECONDS = 50;

    private final Peers.Options options;
    private final AmazonDynamoDBLockClient client;
    private LockItem held;

    private Peer(Peers.Options options) {
        this.options = options;
        client = client(options);
    }

    public static void main(String[] arguments) {
        Peers.run(arguments, Peer::new, Peer::connect);
    }

    @Override
    public void acquire() throws InterruptedException {
        held = client.acquireLock(request().withAdditionalTimeToWaitForLock(TimeUnit.HOURS.toMillis(1)).build());
    }

    @Override
    public boolean attempt() throws InterruptedException {
        try {
            // This is not tryAcquireLock, which waits for a whole lease by default, and otherwise throws.
            held = client.acquireLock(request().withShouldSkipBlockingWait(true).build());
            return true;
        } catch (LockCurrentlyUnavailableException unavailable) {
            return false;
        }
    }

    @Override
    public void release() {
        release(client, held);
    }

    private AcquireLockOptions.AcquireLockOptionsBuilder request() {
        return AcquireLockOptions.builder(options.text("lock"))
                .withTimeUnit(TimeUnit.MILLISECONDS)
                .withRefreshPeriod(REFRESH_MILLISECONDS)
                .withDeleteLockOnRelease(!options.has("keep"))
                .withUpdateExistingLockRecord(options.has("update"));
    }

    private static AmazonDynamoDBLockClient client(Peers.Options options) {
        DynamoDbClient api = DynamoDbClient.builder()
                .endpointOverride(URI.create(options.text("endpoint")))
                .region(Region.US_EAST_1)
                .credentialsProvider(EnvironmentVariableCredentialsProvider.create())
                .build();
        long lease = options.ttlMilliseconds();
        return new AmazonDynamoDBLockClient(AmazonDynamoDBLockClientOptions.builder(api, options.text("table"))
                .withTimeUnit(TimeUnit.MILLISECONDS)
                .withLeaseDuration(lease)
                .withHeartbeatPeriod(lease / 3)
                .withCreateHeartbeatBackgroundThread(true)
                .build());
    }

    private static void release(AmazonDynamoDBLockClient client, LockItem lock) {
        if (!client.releaseLock(lock)) {
            throw new IllegalStateException("the lock was not held any more");
        }
    }

    /**
     * Returns the client of a contender of the benchmark. It has the default settings, except for the lease duration,
     * the heartbeat period and the time that it waits for a lock. So it deletes items when it releases them.
     */
    private static Contender.Client connect(Peers.Options options) {
        AmazonDynamoDBLockClient client = client(options);
        return key -> {
            LockItem lock = client.acquireLock(AcquireLockOptions.builder(key)
                    .withTimeUnit(TimeUnit.HOURS)
                    .withAdditionalTimeToWaitForLock(1L)
                    .build());
            return new Contender.Held() {
                @Override
                public void release() {
                    Peer.release(client, lock);
                }

                @Override
                public boolean lost() {
                    return lock.isExpired();
                }
            };
        };
    }
}
