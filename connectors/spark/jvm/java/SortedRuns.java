// Makes runs of a task's rows: columns in Arrow's layout, with the rows in the order of their subpartitions.
// `RunFrames` in tasks/frames.py reads them. Spark compiles this text in its executors, as it compiles the
// code that it makes for a query; generics and lambdas are unknown there.
//
// A run: the number of rows, then the number of nulls and of bytes of text of each column, each a long; then
// of each column the bitmap of its values (if it has nulls), the ends of its texts (if it is text) and its
// values, each beginning at a multiple of eight bytes, texts with eight bytes to spare. The last column is the
// number of the subpartition.
//
// The texts of RowInput.java and ColumnInput.java, which need the imports below, follow this one.

import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.Predicate$;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.BufferedRowIterator;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

public Object generate(Object[] references) {
  String layout = (String) references[0];
  return new SortedRuns(references.length == 1 ? (Input) new RowInput(layout) : new ColumnInput(layout, references));
}

final class SortedRuns extends BufferedRowIterator {
  private static final int START = Platform.BYTE_ARRAY_OFFSET;

  private final Input input;
  private final Column[] columns;
  private int count;
  private int[] order = new int[0];  // places of the rows, ordered by subpartition
  private byte[] run;

  public SortedRuns(Input input) {
    this.input = input;
    columns = input.columns;
  }

  public void init(int index, scala.collection.Iterator[] inputs) {
    input.init(index, inputs[0]);
  }

  protected void processNext() throws java.io.IOException {
    input.collect();
    count = input.count;
    if (count > 0) append(new GenericInternalRow(new Object[] {sorted()}));
  }

  private byte[] sorted() {
    sort();
    int bitmapBytes = padded((count + 7) / 8);
    int[] starts = new int[columns.length];
    long size = 8 + 16L * columns.length;
    for (int at = 0; at < columns.length; at++) {
      Column column = columns[at];
      starts[at] = (int) size;
      if (column.nulls > 0) size += bitmapBytes;
      if (column.kind == 't') size += padded(4 * (count + 1)) + (column.textBytes + 15 & ~7L);
      else if (column.kind == 'b') size += bitmapBytes;
      else if (column.kind == 'd') size += 16L * count;
      else if (column.kind != 'n') size += padded((column.kind - '0') * count);
    }
    run = new byte[Math.toIntExact(size)];
    Platform.putLong(run, START, count);
    for (int at = 0; at < columns.length; at++) {
      Platform.putLong(run, START + 8 + 16 * at, columns[at].nulls);
      Platform.putLong(run, START + 16 + 16 * at, columns[at].textBytes);
    }
    int[] ends = new int[columns.length];
    for (int first = 0; first < count; first += input.blockRows) {
      int end = Math.min(count, first + input.blockRows);
      for (int at = 0; at < columns.length; at++) {
        Column column = columns[at];
        int values = starts[at];
        if (column.nulls > 0) {
          bitmap(first, end, values, column);
          values += bitmapBytes;
        }
        switch (column.kind) {
          case '8': longs(first, end, values, column.values, column.start, column.step); break;
          case '4': ints(first, end, values, column.values, column.start, column.step); break;
          case '2': shorts(first, end, values, column.values, column.start, column.step); break;
          case '1': bytes(first, end, values, column.values, column.start, column.step); break;
          case 'b': booleans(first, end, values, column.values, column.start, column.step); break;
          case 'd': decimals(first, end, values, column); break;
          case 't': ends[at] = texts(first, end, values, column, ends[at]); break;
        }
      }
    }
    byte[] made = run;
    run = null;
    return made;
  }

  private void sort() {
    int[] subpartitions = input.subpartitions;
    int last = 0;
    for (int row = 0; row < count; row++) last = Math.max(last, subpartitions[row]);
    int[] next = new int[last + 2];
    for (int row = 0; row < count; row++) next[subpartitions[row] + 1]++;
    for (int subpartition = 0; subpartition < last; subpartition++) next[subpartition + 1] += next[subpartition];
    int[] places = input.places;
    if (order.length < count) order = new int[places.length];
    for (int row = 0; row < count; row++) order[next[subpartitions[row]]++] = places[row];
  }

  private static int padded(int bytes) {
    return bytes + 7 & ~7;
  }

  private void bitmap(int first, int end, int to, Column column) {
    byte[] nulls = column.nullBits;
    for (int row = first; row < end; row++) {
      int valid = ~(Platform.getByte(nulls, column.nullStart + order[row]) >>> column.nullBit) & 1;
      run[to + (row >> 3)] |= valid << (row & 7);
    }
  }

  private void longs(int first, int end, int to, byte[] from, long start, long step) {
    for (int row = first; row < end; row++) {
      Platform.putLong(run, START + to + 8L * row, Platform.getLong(from, start + step * order[row]));
    }
  }

  private void ints(int first, int end, int to, byte[] from, long start, long step) {
    for (int row = first; row < end; row++) {
      Platform.putInt(run, START + to + 4L * row, Platform.getInt(from, start + step * order[row]));
    }
  }

  private void shorts(int first, int end, int to, byte[] from, long start, long step) {
    for (int row = first; row < end; row++) {
      Platform.putShort(run, START + to + 2L * row, Platform.getShort(from, start + step * order[row]));
    }
  }

  private void bytes(int first, int end, int to, byte[] from, long start, long step) {
    for (int row = first; row < end; row++) run[to + row] = Platform.getByte(from, start + step * order[row]);
  }

  private void booleans(int first, int end, int to, byte[] from, long start, long step) {
    for (int row = first; row < end; row++) {
      run[to + (row >> 3)] |= (Platform.getByte(from, start + step * order[row]) & 1) << (row & 7);
    }
  }

  // Spark's decimals: as few bytes as possible, the highest first. Arrow's: sixteen, the lowest first.
  private void decimals(int first, int end, int to, Column column) {
    byte[] bytes = column.texts;
    for (int row = first; row < end; row++) {
      long text = Platform.getLong(column.values, column.start + column.step * order[row]);
      int from = column.textStep * order[row] + (int) (text >>> 32), size = (int) text;
      byte sign = (byte) (size > 0 && bytes[from] < 0 ? -1 : 0);
      for (int at = 0; at < 16; at++) run[to + 16 * row + at] = at < size ? bytes[from + size - 1 - at] : sign;
    }
  }

  private int texts(int first, int end, int to, Column column, int used) {
    long values = START + to + padded(4 * (count + 1));
    for (int row = first; row < end; row++) {
      long text = Platform.getLong(column.values, column.start + column.step * order[row]);
      Input.copy(column.texts, START + column.textStep * (long) order[row] + (text >>> 32), run, values + used, (int) text);
      used += (int) text;
      Platform.putInt(run, START + to + 4L * (row + 1), used);
    }
    return used;
  }
}

// Where the values of a column are. That of a row at the place p is at `start + step * p` of `values`. Of a
// text or a large decimal this is, as in Spark's rows, a word of the number of bytes and where they begin,
// counted from `textStep * p` of `texts`.
final class Column {
  final byte kind;
  byte[] values;
  long start = Platform.BYTE_ARRAY_OFFSET;
  long step;
  byte[] texts;
  int textStep;
  long textBytes;
  int nulls;
  byte[] nullBits;  // at `nullStart + p`, at `nullBit`
  long nullStart = Platform.BYTE_ARRAY_OFFSET;
  int nullBit;

  Column(byte kind) {
    this.kind = kind;
  }
}

// The rows of a run, in the order in which they came.
abstract class Input {
  protected static final int BYTES_MAX = 32 << 20;  // of a run, but for one large row
  protected static final int ROWS_MAX = 1 << 17;
  protected static final int START = Platform.BYTE_ARRAY_OFFSET;

  final Column[] columns;
  final int blockRows;  // of which all columns are ordered before those of the next block
  int count;
  int[] places = new int[256];
  int[] subpartitions = new int[256];
  protected scala.collection.Iterator input;

  Input(String layout, int blockRows) {
    this.blockRows = blockRows;
    columns = new Column[layout.length()];
    for (int at = 0; at < columns.length; at++) columns[at] = new Column((byte) layout.charAt(at));
  }

  void init(int index, scala.collection.Iterator input) {
    this.input = input;
  }

  // Collects the rows of the next run: none after the last one.
  void collect() {
    count = 0;
    for (int at = 0; at < columns.length; at++) {
      columns[at].nulls = 0;
      columns[at].textBytes = 0;
    }
    take();
  }

  protected abstract void take();

  protected void growPlaces() {
    places = Arrays.copyOf(places, 2 * places.length);
    subpartitions = Arrays.copyOf(subpartitions, 2 * subpartitions.length);
  }

  // Copies whole words, and so up to seven bytes more.
  static void copy(Object from, long at, byte[] to, long place, int size) {
    if (size > 256) {
      Platform.copyMemory(from, at, to, place, size);
      return;
    }
    for (int done = 0; done < size; done += 8) Platform.putLong(to, place + done, Platform.getLong(from, at + done));
  }
}
