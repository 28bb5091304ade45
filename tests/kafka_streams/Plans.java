import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindowedKStream;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Runs the plans of plans.py on Kafka Streams' TopologyTestDriver: one plan a line of standard input, as JSON; for each a line of all that
 * its shown nodes sent, in order: key, value, timestamp and, where the key is windowed, the window's start and end.
 *
 * <p>Keys are texts and values numbers; there is no cache, so that each update is seen. Argument: a folder for state.
 */
public final class Plans {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Serde<String> KEYS = Serdes.String();
    private static final Serde<Long> VALUES = Serdes.Long();

    private final StreamsBuilder builder = new StreamsBuilder();
    private final Map<String, Object> made = new HashMap<>();
    private final ObjectNode sent = JSON.createObjectNode();

    public static void main(String[] args) throws Exception {
        BufferedReader plans = new BufferedReader(new InputStreamReader(System.in));
        int number = 0;
        for (String line; (line = plans.readLine()) != null; number++)
            System.out.println(new Plans().run(JSON.readTree(line), Path.of(args[0], Integer.toString(number))));
    }

    private ObjectNode run(JsonNode plan, Path state) {
        Map<String, TestInputTopic<String, Long>> topics = new HashMap<>();
        for (JsonNode node : plan.get("nodes")) {
            Object result = build(node);
            made.put(name(node), result);
            if (node.get("shown").asBoolean()) show(name(node), result);
        }
        Properties settings = new Properties();
        settings.put("application.id", "plans");
        settings.put("bootstrap.servers", "none:1");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.LongSerde.class.getName());
        settings.put("state.dir", state.toString());
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), settings, Instant.EPOCH)) {
            for (JsonNode node : plan.get("nodes"))
                if (node.has("topic"))
                    topics.put(topic(node), driver.createInputTopic(topic(node), KEYS.serializer(), VALUES.serializer()));
            for (JsonNode record : plan.get("records")) {
                Long value = record.get("value").isNull() ? null : record.get("value").asLong();
                topics.get(topic(record)).pipeInput(record.get("key").asText(), value, record.get("ts").asLong());
            }
        }
        return sent;
    }

    private Object build(JsonNode node) {
        Materialized<String, Long, KeyValueStore<Bytes, byte[]>> stored = stored(node);
        Grouped<String, Long> grouped = Grouped.with("group-" + name(node), KEYS, VALUES);
        switch (node.get("op").asText()) {
            case "stream": return builder.stream(topic(node), Consumed.with(KEYS, VALUES));
            case "filter": return stream(node, 0).filter((k, v) -> v != null && v % 2 == 0);
            case "map_values": return stream(node, 0).mapValues(v -> v == null ? null : v + 3);
            case "select_key": return stream(node, 0).selectKey((k, v) -> v == null ? null : "" + v % 3);
            case "flat_map_values": return stream(node, 0).flatMapValues(v -> v == null ? List.<Long>of() : List.of(v, v + 1));
            case "merge": return stream(node, 0).merge(stream(node, 1));
            case "look_up": return stream(node, 0).join(table(node, 1), Plans::joined, Joined.with(KEYS, VALUES, VALUES));
            case "left_look_up": return stream(node, 0).leftJoin(table(node, 1), Plans::joined, Joined.with(KEYS, VALUES, VALUES));
            case "pair": return stream(node, 0).join(stream(node, 1), Plans::joined, within(node), paired());
            case "left_pair": return stream(node, 0).leftJoin(stream(node, 1), Plans::joined, within(node), paired());
            case "outer_pair": return stream(node, 0).outerJoin(stream(node, 1), Plans::joined, within(node), paired());

            case "table": return builder.table(topic(node), Consumed.with(KEYS, VALUES), stored);
            case "versioned":
                return builder.table(topic(node), Consumed.with(KEYS, VALUES),
                    Materialized.<String, Long>as(Stores.persistentVersionedKeyValueStore("store-" + name(node), ms(node, "history"))));
            case "to_table": return stream(node, 0).toTable(stored);
            case "count": return group(node, 0).count(stored);
            case "sum": return group(node, 0).reduce(Long::sum, stored);
            case "max": return group(node, 0).reduce(Math::max, stored);
            case "first": return group(node, 0).reduce((acc, v) -> acc, stored);
            case "reduce": return group(node, 0).reduce((acc, v) -> (acc * 3 + v) % 101, stored);
            case "cogroup":  // a sum in the thousands, and the greatest below them
                return group(node, 0).<Long>cogroup((k, v, acc) -> acc + 1000 * v)
                    .cogroup(group(node, 1), (k, v, acc) -> Math.max(acc, acc - acc % 1000 + v))
                    .aggregate(() -> 0L, stored).mapValues(acc -> acc / 1000 * 3 + acc % 1000);

            case "table_filter": return table(node, 0).filter((k, v) -> v % 2 == 0);
            case "table_map_values": return table(node, 0).mapValues(v -> v + 3);
            case "join": return table(node, 0).join(table(node, 1), Plans::joined);
            case "left_join": return table(node, 0).leftJoin(table(node, 1), Plans::joined);
            case "outer_join": return table(node, 0).outerJoin(table(node, 1), Plans::joined);
            case "foreign_join":
                return table(node, 0).join(table(node, 1), Plans::foreign, Plans::joined, TableJoined.as("join-" + name(node)), stored);
            case "foreign_left_join":
                return table(node, 0).leftJoin(table(node, 1), Plans::foreign, Plans::joined, TableJoined.as("join-" + name(node)), stored);
            case "table_count": return table(node, 0).groupBy((k, v) -> KeyValue.pair("" + v % 3, v), grouped).count(stored);
            case "table_sum":
                return table(node, 0).groupBy((k, v) -> KeyValue.pair("" + v % 3, v), grouped)
                    .reduce(Long::sum, (acc, v) -> acc - v, stored);
            case "to_stream": return table(node, 0).toStream();

            case "time_windows":
                return fold(node, group(node, 0).windowedBy(
                    TimeWindows.ofSizeAndGrace(ms(node, "size"), ms(node, "grace")).advanceBy(ms(node, "every"))));
            case "sliding":
                return fold(node, group(node, 0).windowedBy(
                    SlidingWindows.ofTimeDifferenceAndGrace(ms(node, "size"), ms(node, "grace"))));
            case "sessions": {
                SessionWindowedKStream<String, Long> windows =
                    group(node, 0).windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(node, "size"), ms(node, "grace")));
                Materialized<String, Long, SessionStore<Bytes, byte[]>> kept = kept(node);
                return counts(node) ? windows.count(kept) : windows.reduce(Long::sum, kept);
            }
            case "final": return windowed(node).suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()));
            case "of_all_windows":
                return windowed(node).groupBy((w, v) -> KeyValue.pair(w.key(), v), grouped)
                    .reduce(Long::sum, (acc, v) -> acc - v, stored);
            default: throw new IllegalArgumentException(node.toString());
        }
    }

    private static Long joined(Long left, Long right) {
        return ((left == null ? 1 : left) * 7 + (right == null ? 2 : right)) % 101;
    }

    private static String foreign(Long value) { return value <= 7 ? "" + value % 4 : null; }

    private KTable<Windowed<String>, Long> fold(JsonNode node, TimeWindowedKStream<String, Long> windows) {
        Materialized<String, Long, WindowStore<Bytes, byte[]>> kept = kept(node);
        return counts(node) ? windows.count(kept) : windows.reduce(Long::sum, kept);
    }

    private static <S extends org.apache.kafka.streams.processor.StateStore> Materialized<String, Long, S> kept(JsonNode node) {
        return Materialized.<String, Long, S>as("store-" + name(node))
            .withKeySerde(KEYS).withValueSerde(VALUES).withRetention(Duration.ofDays(1));
    }

    private static Materialized<String, Long, KeyValueStore<Bytes, byte[]>> stored(JsonNode node) {
        return Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("store-" + name(node))).withKeySerde(KEYS).withValueSerde(VALUES);
    }

    private static StreamJoined<String, Long, Long> paired() { return StreamJoined.with(KEYS, VALUES, VALUES); }

    private static JoinWindows within(JsonNode node) {
        return JoinWindows.ofTimeDifferenceAndGrace(Duration.ZERO, ms(node, "grace")).before(ms(node, "before")).after(ms(node, "after"));
    }

    private static boolean counts(JsonNode node) { return node.get("fold").asText().equals("count"); }

    private static Duration ms(JsonNode node, String name) { return Duration.ofMillis(node.get(name).asLong()); }

    private static String name(JsonNode node) { return node.get("name").asText(); }

    private static String topic(JsonNode node) { return node.get("topic").asText(); }

    private KGroupedStream<String, Long> group(JsonNode node, int parent) {
        return stream(node, parent).groupByKey(Grouped.with("group-" + name(node) + "-" + parent, KEYS, VALUES));
    }

    private Object parent(JsonNode node, int parent) { return made.get(node.get("of").get(parent).asText()); }

    @SuppressWarnings("unchecked")
    private KStream<String, Long> stream(JsonNode node, int parent) { return (KStream<String, Long>) parent(node, parent); }

    @SuppressWarnings("unchecked")
    private KTable<String, Long> table(JsonNode node, int parent) { return (KTable<String, Long>) parent(node, parent); }

    @SuppressWarnings("unchecked")
    private KTable<Windowed<String>, Long> windowed(JsonNode node) { return (KTable<Windowed<String>, Long>) parent(node, 0); }

    /** Keeps what a node sends; by a processor, since only those see timestamps. */
    @SuppressWarnings("unchecked")
    private void show(String name, Object result) {
        ArrayNode rows = sent.putArray(name);
        KStream<Object, Long> stream = result instanceof KTable ? ((KTable<Object, Long>) result).toStream() : (KStream<Object, Long>) result;
        stream.processValues(() -> new ContextualFixedKeyProcessor<Object, Long, Long>() {
            @Override
            public void process(FixedKeyRecord<Object, Long> record) {
                Object key = record.key();
                String text = key instanceof Windowed ? ((Windowed<String>) key).key() : (String) key;
                ArrayNode row = rows.addArray().add(text).add(record.value()).add(record.timestamp());
                if (key instanceof Windowed) row.add(((Windowed<?>) key).window().start()).add(((Windowed<?>) key).window().end());
            }
        });
    }
}
