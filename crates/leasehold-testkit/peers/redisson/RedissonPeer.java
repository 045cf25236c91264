import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.config.Config;

/**
 * Acquires locks in Redis with Redisson.
 *
 * <pre>--address HOST:PORT --lock KEY --ttl SECONDS
 * bench ... --address HOST:PORT --lock KEY --ttl-ms MILLISECONDS</pre>
 *
 * The ttl is the timeout of Redisson's watchdog, which renews the lock. All other settings are Redisson's defaults. Its
 * lock is a hash at the key. With REDISSON_FAIR=on in the environment, Redisson also keeps a list and a sorted set of the
 * waiters, at separate keys.
 */
final class RedissonPeer implements Peers.Lock {
    private final RLock lock;

    private RedissonPeer(Peers.Options options) {
        lock = lock(client(options), options, options.text("lock"));
    }

    public static void main(String[] arguments) {
        Peers.run(arguments, RedissonPeer::new, RedissonPeer::connect);
    }

    @Override
    public void acquire() throws InterruptedException {
        lock.lockInterruptibly();
    }

    @Override
    public boolean attempt() {
        try {
            return lock.tryLock();
        } catch (RedisException refused) {
            // The key contains the string of another client, or another type that is not a lock of Redisson.
            if (refused.getMessage().contains("WRONGTYPE")) {
                return false;
            }
            throw refused;
        }
    }

    @Override
    public void release() {
        lock.unlock();
    }

    private static RedissonClient client(Peers.Options options) {
        Config config = new Config();
        config.setLockWatchdogTimeout(options.ttlMilliseconds());
        config.useSingleServer().setAddress("redis://" + options.text("address"));
        return Redisson.create(config);
    }

    private static RLock lock(RedissonClient client, Peers.Options options, String key) {
        return "on".equals(System.getenv("REDISSON_FAIR")) ? client.getFairLock(key) : client.getLock(key);
    }

    private static Contender.Client connect(Peers.Options options) {
        RedissonClient client = client(options);
        return key -> {
            RLock lock = lock(client, options, key);
            lock.lockInterruptibly();
            // The lock belongs to this thread.
            long owner = Thread.currentThread().getId();
            return new Contender.Held() {
                @Override
                public void release() {
                    lock.unlockAsync(owner).toCompletableFuture().join();
                }

                /** Asks the server, because the watchdog reports no loss. */
                @Override
                public boolean lost() {
                    return !lock.isHeldByThread(owner);
                }
            };
        };
    }
}
