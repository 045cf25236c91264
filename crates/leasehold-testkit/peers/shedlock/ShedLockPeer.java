import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.TimeZone;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.postgresql.ds.PGSimpleDataSource;
import org.springframework.jdbc.core.JdbcTemplate;

/**
 * Takes locks in PostgreSQL with ShedLock's JDBC provider. What it does and says is written in ../go/peers.go.
 *
 * <pre>--jdbc URL --table TABLE --lock NAME --ttl SECONDS [--zone ZONE]</pre>
 *
 * The ttl is ShedLock's lockAtMostFor. It takes the time of the database. The zone is that of its JVM. ShedLock itself does
 * not wait: this asks again.
 */
final class ShedLockPeer {
    private static final long ASK_AGAIN_MILLISECONDS = 20;

    private final Map<String, String> options;
    private final JdbcTemplateLockProvider provider;

    private ShedLockPeer(Map<String, String> options) {
        this.options = options;
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setUrl(text("jdbc"));
        provider = new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder()
                .withJdbcTemplate(new JdbcTemplate(source))
                .withTableName(text("table"))
                .usingDbTime()
                .build());
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int i = 1; i < arguments.length; i++) {
            boolean alone = i + 1 == arguments.length || arguments[i + 1].startsWith("--");
            options.put(arguments[i].substring("--".length()), alone ? "" : arguments[++i]);
        }
        if (options.containsKey("zone")) {
            TimeZone.setDefault(TimeZone.getTimeZone(options.get("zone")));
        }
        ShedLockPeer peer = new ShedLockPeer(options);
        switch (arguments[0]) {
            case "hold" -> peer.hold();
            case "try" -> peer.attempt();
            case "increment" -> peer.increment();
            default -> throw new IllegalArgumentException("there is no verb " + arguments[0]);
        }
    }

    private String text(String name) {
        String value = options.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    private void hold() throws Exception {
        SimpleLock lock = acquire();
        say("granted");
        while (System.in.read() >= 0) {
            // What is written there has no meaning, only its end.
        }
        lock.unlock();
        say("released");
    }

    private void attempt() {
        Optional<SimpleLock> lock = ask();
        say(lock.isPresent() ? "granted" : "held");
        lock.ifPresent(SimpleLock::unlock);
        System.exit(lock.isPresent() ? 0 : 1);
    }

    private void increment() throws Exception {
        Path file = Path.of(text("file"));
        for (int left = Integer.parseInt(text("times")); left > 0; left--) {
            SimpleLock lock = acquire();
            long from = nanosecondsSinceBoot();
            long number = Long.parseLong(Files.readString(file).trim());
            // Neither atomic nor locked: two processes at once lose an addition or read half a number.
            Files.writeString(file, Long.toString(number + 1));
            long until = nanosecondsSinceBoot();
            lock.unlock();
            say(from + " " + until);
        }
    }

    private Optional<SimpleLock> ask() {
        Duration most = Duration.ofSeconds(Long.parseLong(text("ttl")));
        return provider.lock(new LockConfiguration(Instant.now(), text("lock"), most, Duration.ZERO));
    }

    private SimpleLock acquire() throws InterruptedException {
        for (;;) {
            Optional<SimpleLock> lock = ask();
            if (lock.isPresent()) {
                return lock.get();
            }
            Thread.sleep(ASK_AGAIN_MILLISECONDS);
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
