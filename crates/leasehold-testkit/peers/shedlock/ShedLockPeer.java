import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.TimeZone;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DriverManagerDataSource;

/**
 * Acquires locks in PostgreSQL or MariaDB with ShedLock's JDBC provider.
 *
 * <pre>--jdbc URL --table TABLE --lock NAME --ttl SECONDS [--zone ZONE]</pre>
 *
 * The ttl is ShedLock's lockAtMostFor. ShedLock uses the time of the database. The zone is that of the JVM. ShedLock
 * itself does not wait, so this program tries again.
 */
final class ShedLockPeer implements Peers.Lock {
    private static final long ASK_AGAIN_MILLISECONDS = 20;

    private final Peers.Options options;
    private final JdbcTemplateLockProvider provider;
    private SimpleLock held;

    private ShedLockPeer(Peers.Options options) {
        if (options.has("zone")) {
            TimeZone.setDefault(TimeZone.getTimeZone(options.text("zone")));
        }
        this.options = options;
        DriverManagerDataSource source = new DriverManagerDataSource(options.text("jdbc"));
        provider = new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder()
                .withJdbcTemplate(new JdbcTemplate(source))
                .withTableName(options.text("table"))
                .usingDbTime()
                .build());
    }

    public static void main(String[] arguments) {
        Peers.run(arguments, ShedLockPeer::new, options -> {
            throw new UnsupportedOperationException("it is not a contender of the benchmark");
        });
    }

    @Override
    public void acquire() throws InterruptedException {
        while (!attempt()) {
            Thread.sleep(ASK_AGAIN_MILLISECONDS);
        }
    }

    @Override
    public boolean attempt() {
        Duration most = Duration.ofMillis(options.ttlMilliseconds());
        Optional<SimpleLock> lock =
                provider.lock(new LockConfiguration(Instant.now(), options.text("lock"), most, Duration.ZERO));
        held = lock.orElse(null);
        return lock.isPresent();
    }

    @Override
    public void release() {
        held.unlock();
    }
}
