import com.amazonaws.services.dynamodbv2.local.main.ServerRunner;
import com.amazonaws.services.dynamodbv2.local.server.DynamoDBProxyServer;
import org.eclipse.jetty.server.Connector;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/** Runs DynamoDB Local only on the loopback interface, for which it has no option. */
final class LoopbackDynamoDb {
    public static void main(String[] arguments) throws Exception {
        DynamoDBProxyServer local = ServerRunner.createServerFromCommandLineArgs(arguments);
        var field = DynamoDBProxyServer.class.getDeclaredField("server");
        field.setAccessible(true);
        for (Connector connector : ((Server) field.get(local)).getConnectors()) {
            ((ServerConnector) connector).setHost("127.0.0.1");
        }
        local.start();
        local.join();
    }
}
