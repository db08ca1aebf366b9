// Makes RDDs of runs in the driver. Where nothing but the number of the subpartition is computed of a scan's
// columns, Spark makes no rows of them: `SortedRuns` takes the columns.

import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BinaryComparison;
import org.apache.spark.sql.catalyst.expressions.BindReferences;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Not;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.UnscaledValue;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenEvaluatorFactory;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.UserDefinedType;
import scala.util.Either;

public Object generate(Object[] references) {
  return new PlannedRuns();
}

public final class PlannedRuns {
  // Returns the runs of a plan. `text` is that of `SortedRuns`, `unread` a metric that nobody reads.
  public Object over(Object plan, String layout, Either text, SQLMetric unread) {
    SparkPlan rows = (SparkPlan) plan, node = rows;
    SQLMetric duration = unread;
    if (rows instanceof WholeStageCodegenExec) {
      duration = rows.longMetric("pipelineTime");
      node = ((WholeStageCodegenExec) rows).child();
    }
    if (node instanceof ProjectExec) {
      ProjectExec project = (ProjectExec) node;
      SparkPlan given = project.child();
      while (given instanceof ProjectExec && isChoice((ProjectExec) given)) given = ((ProjectExec) given).child();
      FilterExec filter = given instanceof FilterExec ? (FilterExec) given : null;
      SparkPlan read = filter == null ? given : filter.child();
      if (read instanceof ColumnarToRowExec) {
        Object[] references = references(layout, project, filter, read);
        if (references != null) return made(((ColumnarToRowExec) read).child().executeColumnar(), duration, text, references);
      }
    }
    return made(rows.execute(), unread, text, new Object[] {layout});
  }

  private static Object made(RDD elements, SQLMetric duration, Either text, Object[] references) {
    return elements.mapPartitionsWithEvaluator(
      new WholeStageCodegenEvaluatorFactory(text, duration, references),
      scala.reflect.ClassTag$.MODULE$.Any()
    );
  }

  // Returns true if a projection computes nothing and renames nothing.
  private static boolean isChoice(ProjectExec project) {
    for (int at = 0; at < project.projectList().size(); at++) {
      if (!(project.projectList().apply(at) instanceof Attribute)) return false;
    }
    return true;
  }

  // Returns what `ColumnInput` needs, null if the plan computes other columns or a condition that is not simple.
  private static Object[] references(String layout, ProjectExec project, FilterExec filter, SparkPlan read) {
    if (!project.subqueries().isEmpty() || filter != null && !isSimple(filter.condition())) return null;
    int count = layout.length() - 1;
    int[] places = new int[count];
    DataType[] types = new DataType[count];
    for (int at = 0; at < count; at++) {
      Object column = project.projectList().apply(at);
      if (column instanceof Alias) column = ((Alias) column).child();
      if (column instanceof UnscaledValue) column = ((UnscaledValue) column).child();
      if (!(column instanceof Attribute)) return null;
      places[at] = ((BoundReference) bound(column, read)).ordinal();
      types[at] = ((Attribute) column).dataType();
      if (types[at] instanceof UserDefinedType) return null;
    }
    Object number = project.projectList().apply(count);
    if (!(number instanceof Alias)) return null;
    return new Object[] {
      layout,
      places,
      types,
      bound(((Alias) number).child(), read),
      filter == null ? null : bound(filter.condition(), read),
      read.longMetric("numInputBatches"),
      read.longMetric("numOutputRows"),
      filter == null ? null : filter.longMetric("numOutputRows"),
    };
  }

  // Returns true if a condition cannot fail, and gives the same in every order of evaluation. `FilterExec` has an
  // order of its own.
  private static boolean isSimple(Expression condition) {
    boolean isKnown =
      condition instanceof Attribute || condition instanceof Literal || condition instanceof BinaryComparison
      || condition instanceof In || condition instanceof InSet
      || condition instanceof IsNull || condition instanceof IsNotNull
      || condition instanceof Not || condition instanceof And || condition instanceof Or;
    for (int at = 0; isKnown && at < condition.children().size(); at++) {
      isKnown = isSimple((Expression) condition.children().apply(at));
    }
    return isKnown;
  }

  private static Expression bound(Object expression, SparkPlan read) {
    return BindReferences.bindReference(
      (Expression) expression,
      new org.apache.spark.sql.catalyst.expressions.package$AttributeSeq(read.output()),
      false
    );
  }
}
